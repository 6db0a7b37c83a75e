"""Thin widgets: they hold a cursor and a scroll position, and draw what `render` made."""
