"""What every test shares: quiet libraries, and Hypothesis without a clock or chance, since the cores are shared."""

from hypothesis import settings

from orchestra.system.environment import quiet

quiet()
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")
