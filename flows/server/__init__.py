"""Modules of this project that Prefect's server loads: its order of events, and e-mail as a notification."""

from flows.server.mail import EmailNotification as EmailNotification
