"""How the rows of a training batch go through the model: by length, or as the tree of what they share."""
