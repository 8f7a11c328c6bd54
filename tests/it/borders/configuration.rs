//! A configuration file that an agent, or a stranger, wrote.
