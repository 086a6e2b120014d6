"""Speed measured: what a rollout and a training step cost, against other ways of doing them."""
