"""Named styles and lines as cells of a terminal: pure, no widget and no state."""
