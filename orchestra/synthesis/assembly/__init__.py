"""An example put together: the draft, its toolbox, its prices, its preference."""
