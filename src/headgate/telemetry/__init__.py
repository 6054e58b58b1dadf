"""What operators watch: metrics, traces and logs. Nothing here changes what is decided."""
