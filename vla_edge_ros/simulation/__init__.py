"""A table with an arm in MuJoCo, tasks on it and an expert that does them: a loop around the node."""
