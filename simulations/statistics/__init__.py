"""Questions to tables at hand, answered through the masked sums that real sites would send."""
