"""The functions of the language over columns of events: texts, times, calendars, lists."""
