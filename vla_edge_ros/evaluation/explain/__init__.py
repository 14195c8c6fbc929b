"""Why a tick of a recorded run decided as it did, in words. No ROS, and nothing is run again."""
