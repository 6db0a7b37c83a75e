"""One way to write a number, a duration, a size, a list of ranks or a state, wherever it stands."""
