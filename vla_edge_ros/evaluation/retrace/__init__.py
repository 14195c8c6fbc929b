"""The ticks of a recorded run, run again by the node's own controller and compared with the record."""
