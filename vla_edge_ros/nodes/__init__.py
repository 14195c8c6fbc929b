"""ROS in, ROS out: the only package that imports rclpy."""
