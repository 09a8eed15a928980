"""Hard rules on how the VMs of one tenant lie together: spread, limits, co-location."""
