"""Where images come from: domains, the data sets they form, the tasks over them, and the batches drawn from them."""
