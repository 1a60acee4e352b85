"""What PAGE_CACHE_LIMIT puts in place: back ends, the record of files read, their release."""
