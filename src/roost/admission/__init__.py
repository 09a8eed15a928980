"""What a cluster must keep free for what it has promised. Asked by the service; knows the store by its contract."""
