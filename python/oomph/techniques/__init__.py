"""Memory-saving techniques that are switched on from outside a program."""
