"""What Prefect's server loads of ours: its order of events, and e-mail as one of its notifications."""

from flows.server.mail import EmailNotification as EmailNotification
