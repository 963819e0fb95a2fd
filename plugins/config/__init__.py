"""What the configuration file says, and what it must say for the promises to hold."""
