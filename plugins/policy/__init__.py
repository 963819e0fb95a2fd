"""Pure decisions: standard library only, no clock, no I/O."""
