"""GRPO: how groups are played, judged, trained on and watched."""
