"""Who holds what: the references that keep tensors alive, as a graph."""
