"""Training and loading in child processes: what the parent holds, and what runs in the child."""
