"""What ``pipediag.cache`` gains on six kinds of data, beside samples that are in memory already."""
