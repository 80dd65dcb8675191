"""How a look-alike map is drawn: corners, their unique shortest path, textures, pixels. Integers only."""
