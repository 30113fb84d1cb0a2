"""From a state's memory into a slot, while the training goes on."""
