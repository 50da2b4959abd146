"""The gRPC side that all servers share."""
