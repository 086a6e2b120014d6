"""A chat endpoint, asked with retries and a circuit breaker."""
