"""What Speedtronic 2.0 wrote, in today's form: its configuration files and its checkpoints."""
