"""Reads configurations and checkpoints of Speedtronic 2.0, and converts them to today's form."""
