"""Answers as HTML, and the magics of `%load_ext oomph`."""
