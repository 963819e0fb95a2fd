"""What the gateway says of itself; nothing here may fail a call."""
