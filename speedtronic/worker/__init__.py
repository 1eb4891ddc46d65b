"""Trains and loads in child processes; holds both the parent's side and what runs in the child."""
