"""How we share the interpreter with the program: what we change of it for a moment, and how that stays unseen."""
