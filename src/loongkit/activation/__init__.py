"""From the environment to patched frameworks: settings, plan, post-import hooks, effects, summary.

Everything in this package may run at interpreter start-up, in every process of a job: modules
here import ``os``, ``sys`` and built-ins at their top, nothing else.
"""

#: What every setting's name begins with.
PREFIX = "LOONGKIT_"
