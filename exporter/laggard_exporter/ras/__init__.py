"""NCCL's RAS service as a witness: which ranks it cannot reach, and who has issued fewer collectives than others."""
