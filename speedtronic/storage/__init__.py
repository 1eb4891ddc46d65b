"""Stores files below a directory or URL, and locks it for the one process that writes there."""
