"""SVG charts without scripts and inline styles; the style sheet defines the colors."""
