"""Who does not join a collective: reading torch's flight recorder, and what follows from it."""
