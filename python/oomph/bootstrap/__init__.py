"""How a process that `oomph` has started gets the recorder, emulated values and techniques, before the program runs."""
