"""What ``pipediag.cache`` gains on five kinds of data, beside samples that are in memory already."""
