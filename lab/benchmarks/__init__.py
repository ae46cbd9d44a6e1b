"""What laggard costs, beside its peers and beside another version of itself."""
