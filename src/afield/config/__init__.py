"""What a user may ask for: options, presets, names, protocols, plans. Nothing here runs anything or imports torch."""
