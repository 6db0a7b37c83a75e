"""Show, never compute: text for pipes (present), cells for screens (render), widgets and the
app."""
