"""How a replica answers: its gRPC services and its bulk lane."""
