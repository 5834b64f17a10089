"""Consumers: committed messages without Spark, with retries, receipts and groups of instances.

Begin with `consume` and `subscription`. `topic` reads rows behind a `cursor` as `plan` says, `lanes` has messages in
hand. `receipts` stores outcomes, `group` owner and cursor of each queue, when `group_member` and `clerk` say so.
"""
