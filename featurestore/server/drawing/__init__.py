"""Pictures as SVG without a script or a style of their own: colors come from the style sheet."""
