"""What all four systems use. Imports nothing of urds but itself."""
