"""The screens. They arrange widgets and handle keys; the facts they show come from the session."""
